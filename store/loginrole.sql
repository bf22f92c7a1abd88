-- Acts as the role that has logged in, until the transaction ends.
SET LOCAL ROLE NONE
