// Package sql holds the statements of package move. Those whose names begin with Command
// return the text of a command, because commands take no parameters.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// Of check.sql.
var (
	Server  = set.Get("Server")
	Clock   = set.Get("Clock")
	Rights  = set.Get("Rights")
	Used    = set.Get("Used")
	Copies  = set.Get("Copies")
	Roles   = set.Get("Roles")
	NoRoles = set.Get("NoRoles")
	Owner   = set.Get("Owner")
	ActAs   = set.Get("ActAs")
)

// Of copy.sql.
var (
	TryLock               = set.Get("TryLock")
	Tables                = set.Get("Tables")
	Announce              = set.Get("Announce")
	Step                  = set.Get("Step")
	Abandon               = set.Get("Abandon")
	Incoming              = set.Get("Incoming")
	Days                  = set.Get("Days")
	MakeDay               = set.Get("MakeDay")
	HasPublication        = set.Get("HasPublication")
	HasSubscription       = set.Get("HasSubscription")
	CreateSlot            = set.Get("CreateSlot")
	HasSlot               = set.Get("HasSlot")
	SubscriptionState     = set.Get("SubscriptionState")
	CopiedSlots           = set.Get("CopiedSlots")
	LostSlots             = set.Get("LostSlots")
	Lag                   = set.Get("Lag")
	Size                  = set.Get("Size")
	CommandsIdentity      = set.Get("CommandsIdentity")
	CommandsPlainIdentity = set.Get("CommandsPlainIdentity")
	CommandTruncate       = set.Get("CommandTruncate")
	CommandTakeName       = set.Get("CommandTakeName")
	CommandDropCopy       = set.Get("CommandDropCopy")
	CommandStub           = set.Get("CommandStub")
	CommandPublish        = set.Get("CommandPublish")
	CommandSubscribe      = set.Get("CommandSubscribe")
	CommandGrants         = set.Get("CommandGrants")
)

// Of switch.sql.
var (
	Pause           = set.Get("Pause")
	EndPause        = set.Get("EndPause")
	LockLimits      = set.Get("LockLimits")
	CommandLock     = set.Get("CommandLock")
	Mark            = set.Get("Mark")
	Marked          = set.Get("Marked")
	Sequences       = set.Get("Sequences")
	SetSequence     = set.Get("SetSequence")
	Ready           = set.Get("Ready")
	CommandMoveAway = set.Get("CommandMoveAway")
)

// Of clean.sql.
var (
	CommandDetach        = set.Get("CommandDetach")
	CommandDropPublished = set.Get("CommandDropPublished")
	SyncSlots            = set.Get("SyncSlots")
	FurtherSlots         = set.Get("FurtherSlots")
	EndSlots             = set.Get("EndSlots")
	DropSlots            = set.Get("DropSlots")
	Cleaned              = set.Get("Cleaned")
	HasSchema            = set.Get("HasSchema")
	CommandDropOld       = set.Get("CommandDropOld")
	CommandCount         = set.Get("CommandCount")
)

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
