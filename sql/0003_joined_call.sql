-- compatible_from: 1
--
-- Joined calls of several statements, from the first statement to the last, in a transaction that another library
-- commits.
--
-- Such a transaction must not commit while the call is open. Otherwise a claim would stay pending although its writes
-- are kept, or a quota would stay charged although the work was never done. So the first statement inserts a row here,
-- and the last one deletes it. `call` refers to a table that is always empty. PostgreSQL checks this at COMMIT, which
-- then fails, and its error names the call. No row of this table is ever committed. `dibs.transaction` refuses COMMIT
-- itself and inserts no row.
--
-- The mark of a call is the ctid and the id of its row. The functions read only that row. A scan of the table, or of a
-- page of an index, would make all serializable transactions that have a call conflict with each other. `enable_seqscan
-- = off` prevents a scan also where the table is empty and a scan seems cheap. The id tells the row from a later one in
-- its place.

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

-- Marks a call as open and returns the mark. `p_result` is the result of the first statement. A call that was refused,
-- or that only reads a stored outcome, ends with its first statement and gets no mark. With null, every call is marked.
-- Locks: the new row, which no other transaction reads.
create function {schema}.joined_call_open(p_call text, p_result json) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_mark text;
begin
  if p_result is not null and p_result ->> 'state' not in ('claimed', 'taken over', 'granted', 'voided') then
    return null;
  end if;
  -- After `set constraints all immediate` by the caller, the insert itself would fail.
  set constraints {schema}.await_joined_calls_before_commit deferred;
  -- point: before the mark
  insert into {schema}.joined_call (call) values (p_call) returning ctid::text || ' ' || id into v_mark; -- guard: transaction.foreign-commit-open-call
  return v_mark;
end
$$;

-- Raises an error unless the call is open in the current transaction. Otherwise a statement between the first and the
-- last could run after a refused COMMIT, outside any transaction. Locks nothing.
create function {schema}.joined_call_check(p_mark text) returns boolean
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
begin
  -- point: before the read
  perform from {schema}.joined_call
    where ctid = split_part(p_mark, ' ', 1)::tid and id = split_part(p_mark, ' ', 2)::bigint;
  if not found then
    raise exception 'the transaction of this call has ended' using errcode = 'DIB03';
  end if;
  return true;
end
$$;

-- Removes the mark of a call. Returns false if the transaction of the call has ended. Locks: the row of the call, which
-- belongs to the current transaction.
create function {schema}.joined_call_close(p_mark text) returns boolean
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
begin
  -- point: before the removal of the mark
  delete from {schema}.joined_call
    where ctid = split_part(p_mark, ' ', 1)::tid and id = split_part(p_mark, ' ', 2)::bigint;
  return found;
end
$$;
