package sql

// Of clock.sql.
var (
	Installed       = set.Get("Installed")
	Used            = set.Get("Used")
	CreateTable     = set.Get("CreateTable")
	ReplaceFunction = set.Get("ReplaceFunction")
	Create          = set.Get("Create")
	ServerNow       = set.Get("ServerNow")
	Read            = set.Get("Read")
	Look            = set.Get("Look")
)
