-- The least memory, so that the sort of room.sql needs the disk.
SET LOCAL work_mem = '64kB'
