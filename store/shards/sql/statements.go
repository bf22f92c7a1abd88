package sql

// Of bulk.sql.
var (
	BulkInsert     = set.Get("BulkInsert")
	BulkHash       = set.Get("BulkHash")
	BulkAge        = set.Get("BulkAge")
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
	AssertOwned     = set.Get("AssertOwned")
	AssertClaim     = set.Get("AssertClaim")
	ClaimRange      = set.Get("ClaimRange")
	ClaimCapped     = set.Get("ClaimCapped")
	ClaimFlows      = set.Get("ClaimFlows")
	ClaimKeys       = set.Get("ClaimKeys")
	DueKeys         = set.Get("DueKeys")
	RowQuarantine   = set.Get("RowQuarantine")
	RowsQuarantined = set.Get("RowsQuarantined")
	RowsNote        = set.Get("RowsNote")
	RowsRetry       = set.Get("RowsRetry")
	RowsForget      = set.Get("RowsForget")
	Peek            = set.Get("Peek")
	PeekExcluded    = set.Get("PeekExcluded")
)

// Of counters.sql.
var (
	DeltaInsert = set.Get("DeltaInsert")
	CounterFold = set.Get("CounterFold")
	CounterRead = set.Get("CounterRead")
	RecountRows = set.Get("RecountRows")
)

// Of compact.sql.
var (
	CompactLevel0Packs    = set.Get("CompactLevel0Packs")
	CompactBuckets        = set.Get("CompactBuckets")
	CompactCrowded        = set.Get("CompactCrowded")
	CompactSmall          = set.Get("CompactSmall")
	CompactLockLevel0     = set.Get("CompactLockLevel0")
	CompactLockPacks      = set.Get("CompactLockPacks")
	CompactTombstones     = set.Get("CompactTombstones")
	CompactDropTombstones = set.Get("CompactDropTombstones")
	CompactDropLevel0     = set.Get("CompactDropLevel0")
	CompactDropPacks      = set.Get("CompactDropPacks")
	PackInsert            = set.Get("PackInsert")
	Level0Quarantine      = set.Get("Level0Quarantine")
	PackQuarantine        = set.Get("PackQuarantine")
	Level0Newer           = set.Get("Level0Newer")
	PackNewer             = set.Get("PackNewer")
	Level0Restore         = set.Get("Level0Restore")
	PackRestore           = set.Get("PackRestore")
	LocatorRead           = set.Get("LocatorRead")
	LocatorWrite          = set.Get("LocatorWrite")
	LocatorPurge          = set.Get("LocatorPurge")
	FarStats              = set.Get("FarStats")
	OldestSnapshot        = set.Get("OldestSnapshot")
	Demote                = set.Get("Demote")
	DemotePaused          = set.Get("DemotePaused")
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
	Level0Insert = set.Get("Level0Insert")
	FarCopies    = set.Get("FarCopies")
	FarWhere     = set.Get("FarWhere")
	FarKeys      = set.Get("FarKeys")
	PackParams   = set.Get("PackParams")
	Level0Params = set.Get("Level0Params")
	PackHold     = set.Get("PackHold")
	Level0Hold   = set.Get("Level0Hold")
	Recall       = set.Get("Recall")
	PackDue      = set.Get("PackDue")
	Level0Window = set.Get("Level0Window")
	FarDue       = set.Get("FarDue")
	PackWindow   = set.Get("PackWindow")
	FarDamaged   = set.Get("FarDamaged")
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
	OutboxAcknowledge = set.Get("OutboxAcknowledge")
	OutboxDeleteEmpty = set.Get("OutboxDeleteEmpty")
	OutboxRead        = set.Get("OutboxRead")
	OutboxQuarantine  = set.Get("OutboxQuarantine")
	OpenRuns          = set.Get("OpenRuns")
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
	TokensMake   = set.Get("TokensMake")
	TokensTake   = set.Get("TokensTake")
	QuotaTake    = set.Get("QuotaTake")
	QuotasUsed   = set.Get("QuotasUsed")
	TenantRates  = set.Get("TenantRates")
	ReplaysHold  = set.Get("ReplaysHold")
	TokensUsed   = set.Get("TokensUsed")
	CapBegin     = set.Get("CapBegin")
	CapEnd       = set.Get("CapEnd")
	CapFence     = set.Get("CapFence")
	CapForget    = set.Get("CapForget")
	CapOpen      = set.Get("CapOpen")
	CapCount     = set.Get("CapCount")
	CapAssert    = set.Get("CapAssert")
	CapNote      = set.Get("CapNote")
	CapPart      = set.Get("CapPart")
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
	Now           = set.Get("Now")
	Begin         = set.Get("Begin")
	RepublishWalk = set.Get("RepublishWalk")
	KeyInsert     = set.Get("KeyInsert")
	KeyRead       = set.Get("KeyRead")
	KeyInsertFor  = set.Get("KeyInsertFor")
	KeyReplace    = set.Get("KeyReplace")
	KeyDrop       = set.Get("KeyDrop")
	KeysOfTasks   = set.Get("KeysOfTasks")
	KeyRenew      = set.Get("KeyRenew")
	KeyRefuse     = set.Get("KeyRefuse")
	KeyPurge      = set.Get("KeyPurge")
	TaskInsert    = set.Get("TaskInsert")
	MachineLock   = set.Get("MachineLock")
	MachineRead   = set.Get("MachineRead")
	RowUpdate     = set.Get("RowUpdate")
	RowEdit       = set.Get("RowEdit")
	RowsUpdate    = set.Get("RowsUpdate")
	RowAdd        = set.Get("RowAdd")
	RowRemove     = set.Get("RowRemove")
	TaskFinish    = set.Get("TaskFinish")
	DonePurge     = set.Get("DonePurge")
)
