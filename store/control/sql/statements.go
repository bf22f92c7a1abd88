package sql

// Of tenant.sql.
var (
	LockTenants    = set.Get("LockTenants")
	Compared       = set.Get("Compared")
	SetCompared    = set.Get("SetCompared")
	TopTenant      = set.Get("TopTenant")
	ReserveTenant  = set.Get("ReserveTenant")
	NewTenant      = set.Get("NewTenant")
	ChangeTenant   = set.Get("ChangeTenant")
	LockSettings   = set.Get("LockSettings")
	RaiseSettings  = set.Get("RaiseSettings")
	RatesForChange = set.Get("RatesForChange")
	KeysForChange  = set.Get("KeysForChange")
	EndedKeys      = set.Get("EndedKeys")
	TenantVersions = set.Get("TenantVersions")
	HistoryLevels  = set.Get("HistoryLevels")
	PutTenants     = set.Get("PutTenants")
	RemoveUsurpers = set.Get("RemoveUsurpers")
	PutDeleted     = set.Get("PutDeleted")
	Deleted        = set.Get("Deleted")
	RevivedTenants = set.Get("RevivedTenants")
	DeleteAgain    = set.Get("DeleteAgain")
	DropTenant     = set.Get("DropTenant")
	TenantDeleted  = set.Get("TenantDeleted")
	TenantByName   = set.Get("TenantByName")
	TenantByID     = set.Get("TenantByID")
	TenantByUID    = set.Get("TenantByUID")
	TenantsAfter   = set.Get("TenantsAfter")
	TenantsAfterID = set.Get("TenantsAfterID")
	Digest         = set.Get("Digest")
)

// Of token.sql.
var (
	NewToken        = set.Get("NewToken")
	WhyNoToken      = set.Get("WhyNoToken")
	PutTokens       = set.Get("PutTokens")
	RevokeToken     = set.Get("RevokeToken")
	TokenByID       = set.Get("TokenByID")
	TokensAfter     = set.Get("TokensAfter")
	RecentlyRevoked = set.Get("RecentlyRevoked")
	RecordUses      = set.Get("RecordUses")
	PurgeTokens     = set.Get("PurgeTokens")
	DropTokens      = set.Get("DropTokens")
	Authenticate    = set.Get("Authenticate")
)

// Of taskd.sql.
var (
	TaskdSeen = set.Get("TaskdSeen")
	TaskdGone = set.Get("TaskdGone")
)
