package sql

// Of bulk.sql.
var (
	BulkInsert     = set.Get("BulkInsert")
	BulkHash       = set.Get("BulkHash")
	BulkPut        = set.Get("BulkPut")
	BulkWant       = set.Get("BulkWant")
	BulkSpread     = set.Get("BulkSpread")
	BulkUnspread   = set.Get("BulkUnspread")
	BulkRead       = set.Get("BulkRead")
	BulkList       = set.Get("BulkList")
	BulkNext       = set.Get("BulkNext")
	BulkHold       = set.Get("BulkHold")
	BulkMove       = set.Get("BulkMove")
	BulkError      = set.Get("BulkError")
	BulkAtRows     = set.Get("BulkAtRows")
	BulkPurge      = set.Get("BulkPurge")
	BulkLock       = set.Get("BulkLock")
	BulkVoid       = set.Get("BulkVoid")
	BulkPauseRows  = set.Get("BulkPauseRows")
	DoneInsert     = set.Get("DoneInsert")
	DoneWalk       = set.Get("DoneWalk")
	DoneTake       = set.Get("DoneTake")
	BulkSeen       = set.Get("BulkSeen")
	BulkForget     = set.Get("BulkForget")
	TenantRows     = set.Get("TenantRows")
	TenantDone     = set.Get("TenantDone")
	TenantDead     = set.Get("TenantDead")
	TenantKeys     = set.Get("TenantKeys")
	TenantSeen     = set.Get("TenantSeen")
	TenantBulk     = set.Get("TenantBulk")
	TenantCounters = set.Get("TenantCounters")
	BulkDrop       = set.Get("BulkDrop")
	BulkKnown      = set.Get("BulkKnown")
)

// Of claim.sql.
var (
	AssertOwned = set.Get("AssertOwned")
	AssertClaim = set.Get("AssertClaim")
	ClaimRange  = set.Get("ClaimRange")
	ClaimCapped = set.Get("ClaimCapped")
	ClaimLanes  = set.Get("ClaimLanes")
	Peek        = set.Get("Peek")
	PeekApart   = set.Get("PeekApart")
)

// Of counters.sql.
var (
	DeltaInsert = set.Get("DeltaInsert")
	CounterFold = set.Get("CounterFold")
	CounterRead = set.Get("CounterRead")
	RecountRows = set.Get("RecountRows")
)

// Of cut.sql.
var (
	CutArrivals      = set.Get("CutArrivals")
	CutBuckets       = set.Get("CutBuckets")
	CutCrowded       = set.Get("CutCrowded")
	CutSmall         = set.Get("CutSmall")
	CutLockArrivals  = set.Get("CutLockArrivals")
	CutLockPacks     = set.Get("CutLockPacks")
	CutOverrides     = set.Get("CutOverrides")
	CutDropOverrides = set.Get("CutDropOverrides")
	CutDropArrivals  = set.Get("CutDropArrivals")
	CutDropPacks     = set.Get("CutDropPacks")
	PackInsert       = set.Get("PackInsert")
	ArrivalDamaged   = set.Get("ArrivalDamaged")
	PackDamaged      = set.Get("PackDamaged")
	LocatorRead      = set.Get("LocatorRead")
	LocatorWrite     = set.Get("LocatorWrite")
	LocatorPurge     = set.Get("LocatorPurge")
	FarStats         = set.Get("FarStats")
	OldestSnapshot   = set.Get("OldestSnapshot")
	Demote           = set.Get("Demote")
)

// Of dead.sql.
var (
	DeadInsert      = set.Get("DeadInsert")
	DeadRead        = set.Get("DeadRead")
	DeadList        = set.Get("DeadList")
	DeadOfTask      = set.Get("DeadOfTask")
	DeadWalk        = set.Get("DeadWalk")
	DeadTake        = set.Get("DeadTake")
	DeadPurge       = set.Get("DeadPurge")
	DeadUnpublished = set.Get("DeadUnpublished")
	DeadTenants     = set.Get("DeadTenants")
	DeadPublished   = set.Get("DeadPublished")
)

// Of explain.sql.
var (
	Circumstances = set.Get("Circumstances")
	RunRows       = set.Get("RunRows")
	TroubleNote   = set.Get("TroubleNote")
)

// Of far.sql.
var (
	ArrivalInsert = set.Get("ArrivalInsert")
	FarCopies     = set.Get("FarCopies")
	FarWhere      = set.Get("FarWhere")
	FarKeys       = set.Get("FarKeys")
	PackParams    = set.Get("PackParams")
	ArrivalParams = set.Get("ArrivalParams")
	PackHold      = set.Get("PackHold")
	ArrivalHold   = set.Get("ArrivalHold")
	Recall        = set.Get("Recall")
	PackDue       = set.Get("PackDue")
	ArrivalWindow = set.Get("ArrivalWindow")
	FarDue        = set.Get("FarDue")
	PackWindow    = set.Get("PackWindow")
	FarDamaged    = set.Get("FarDamaged")
)

// Of history.sql.
var (
	EventInsert = set.Get("EventInsert")
	EventRead   = set.Get("EventRead")
	EventDays   = set.Get("EventDays")
	EventDrop   = set.Get("EventDrop")
	EventPurge  = set.Get("EventPurge")
)

// Of load.sql.
var (
	NumberBlocks = set.Get("NumberBlocks")
	DumpPacks    = set.Get("DumpPacks")
	DumpRows     = set.Get("DumpRows")
)

// Of outbox.sql.
var (
	OutboxInsert      = set.Get("OutboxInsert")
	OutboxDeleteWhole = set.Get("OutboxDeleteWhole")
	OutboxTakeOff     = set.Get("OutboxTakeOff")
	OutboxDeleteEmpty = set.Get("OutboxDeleteEmpty")
	OutboxRead        = set.Get("OutboxRead")
	OutboxStats       = set.Get("OutboxStats")
)

// Of owner.sql.
var (
	OwnerLock    = set.Get("OwnerLock")
	OwnerBump    = set.Get("OwnerBump")
	OwnerRelease = set.Get("OwnerRelease")
	OwnerList    = set.Get("OwnerList")
)

// Of rates.sql.
var (
	SettingsNow  = set.Get("SettingsNow")
	SettingsRead = set.Get("SettingsRead")
	TurnsMake    = set.Get("TurnsMake")
	TurnsTake    = set.Get("TurnsTake")
	TurnsUsed    = set.Get("TurnsUsed")
	CapBegin     = set.Get("CapBegin")
	CapEnd       = set.Get("CapEnd")
	CapFence     = set.Get("CapFence")
	CapForget    = set.Get("CapForget")
	CapOpen      = set.Get("CapOpen")
	CapCount     = set.Get("CapCount")
	CapAssert    = set.Get("CapAssert")
	CapNote      = set.Get("CapNote")
)

// Of read.sql.
var (
	TaskRead    = set.Get("TaskRead")
	TaskList    = set.Get("TaskList")
	DueShard    = set.Get("DueShard")
	TaskListDue = set.Get("TaskListDue")
	DoneList    = set.Get("DoneList")
	DoneStates  = set.Get("DoneStates")
	Census      = set.Get("Census")
)

// Of report.sql.
var (
	ReportEnd       = set.Get("ReportEnd")
	ReportEndNoted  = set.Get("ReportEndNoted")
	ReportGoOn      = set.Get("ReportGoOn")
	ReportGoOnNoted = set.Get("ReportGoOnNoted")
	StartRuns       = set.Get("StartRuns")
	CheckRuns       = set.Get("CheckRuns")
)

// Of task.sql.
var (
	Now          = set.Get("Now")
	NumberBlock  = set.Get("NumberBlock")
	KeyInsert    = set.Get("KeyInsert")
	KeyRead      = set.Get("KeyRead")
	KeyInsertFor = set.Get("KeyInsertFor")
	KeyReplace   = set.Get("KeyReplace")
	KeyDrop      = set.Get("KeyDrop")
	KeysOfTasks  = set.Get("KeysOfTasks")
	KeyRenew     = set.Get("KeyRenew")
	KeyRefuse    = set.Get("KeyRefuse")
	KeyPurge     = set.Get("KeyPurge")
	TaskInsert   = set.Get("TaskInsert")
	KinLock      = set.Get("KinLock")
	KinRead      = set.Get("KinRead")
	RowUpdate    = set.Get("RowUpdate")
	RowEdit      = set.Get("RowEdit")
	RowsUpdate   = set.Get("RowsUpdate")
	RowAdd       = set.Get("RowAdd")
	RowRemove    = set.Get("RowRemove")
	TaskFinish   = set.Get("TaskFinish")
	DonePurge    = set.Get("DonePurge")
)
