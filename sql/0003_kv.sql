-- compatible_from: 1
select 1;
