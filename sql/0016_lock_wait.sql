-- compatible_from: 1
--
-- Kept free for waiting for locks.
select 1;
