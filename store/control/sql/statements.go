package sql

// Of tenant.sql.
var (
	LockTenants    = set.Get("LockTenants")
	NewTenant      = set.Get("NewTenant")
	ChangeTenant   = set.Get("ChangeTenant")
	LockSettings   = set.Get("LockSettings")
	RaiseSettings  = set.Get("RaiseSettings")
	RatesForChange = set.Get("RatesForChange")
	HistoryLevels  = set.Get("HistoryLevels")
	PutTenants     = set.Get("PutTenants")
	DropTenant     = set.Get("DropTenant")
	TenantDeleted  = set.Get("TenantDeleted")
	TenantByName   = set.Get("TenantByName")
	TenantByID     = set.Get("TenantByID")
	TenantsAfter   = set.Get("TenantsAfter")
	TenantsAfterID = set.Get("TenantsAfterID")
	Digest         = set.Get("Digest")
)

// Of token.sql.
var (
	NewToken     = set.Get("NewToken")
	PutTokens    = set.Get("PutTokens")
	RevokeToken  = set.Get("RevokeToken")
	TokensAfter  = set.Get("TokensAfter")
	Authenticate = set.Get("Authenticate")
)
