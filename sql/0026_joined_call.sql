-- compatible_from: 1
--
-- A joined call of several statements, from its first statement to its last, in a transaction that another library commits.
--
-- Such a transaction must not commit while the call is open: a claim would stay pending although its writes are kept, or a
-- quota would stay charged although the work was never done. So the first statement inserts a row here, and the last one
-- deletes it. `call` refers to a table that is always empty. PostgreSQL checks this at COMMIT, which then fails, and its
-- error names the call. No row of this table is ever committed. `dibs.transaction` refuses COMMIT itself and inserts nothing.
--
-- The mark of a call is the ctid and the id of its row. The functions look only there: a scan of the table, or of a page of an
-- index, would make all serializable transactions that have a call conflict with each other. They must not scan either when
-- the table is empty and a scan looks cheap, hence `enable_seqscan = off`. The id tells the row from a later one in its place.

create table {schema}.no_call (
  call text primary key,
  constraint no_call_is_empty check (false)
);

create unlogged table {schema}.joined_call (
  id bigint generated always as identity,
  call text not null,
  constraint await_joined_calls_before_commit foreign key (call) references {schema}.no_call (call)
    deferrable initially deferred
);

-- Marks a call as open. `p_told` is the answer of its first statement: a call that was refused, or only reads a stored
-- answer, ends there and needs no mark. Null marks it in any case.
create function {schema}.joined_call_open(p_call text, p_told json) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_mark text;
begin
  if p_told is not null and p_told ->> 'state' not in ('claimed', 'taken over', 'granted', 'voided') then
    return null;
  end if;
  -- The caller may have said `set constraints all immediate`, which would refuse the call itself.
  set constraints {schema}.await_joined_calls_before_commit deferred;
  -- point: before the mark
  insert into {schema}.joined_call (call) values (p_call) returning ctid::text || ' ' || id into v_mark;
  return v_mark;
end
$$;

-- Raises unless the call is open in this very transaction. A statement between the first and the last must not run behind a
-- COMMIT that was refused, alone and outside of any transaction.
create function {schema}.joined_call_check(p_mark text) returns boolean
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
begin
  -- point: before the look
  perform from {schema}.joined_call
    where ctid = split_part(p_mark, ' ', 1)::tid and id = split_part(p_mark, ' ', 2)::bigint;
  if not found then
    raise exception 'the transaction of this call has ended' using errcode = 'DIB03';
  end if;
  return true;
end
$$;

create function {schema}.joined_call_close(p_mark text) returns boolean
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
begin
  -- point: before the mark goes
  delete from {schema}.joined_call
    where ctid = split_part(p_mark, ' ', 1)::tid and id = split_part(p_mark, ' ', 2)::bigint;
  return found;
end
$$;
