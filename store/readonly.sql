-- Whether transactions of this session read only: on a standby, and where default_transaction_read_only is on.
SELECT current_setting('transaction_read_only')::bool
