// Package identity notices that a logical database is not the one that this process
// knew: a standby that was promoted without the last commits, a backup that was put back,
// or a server that has started again and may have lost something. Such a database is
// adopted before a connection to it is used. docs/adr/0022-adoption.md has the reasons.
//
// # Identity
//
// The table database_identity has one row. It says which logical database this is, on
// which server and start of the server it was last adopted, and its incarnation, which
// grows with each adoption. The row is replicated, saved and restored with the data. So
// the data of a primary that arrive on another server differ from that server, which
// [Guard.Check] finds when a connection is made. A connection cannot change its server,
// so it needs no later check. Tables that are put back by hand while processes run are
// noticed when a process draws a number that is not greater than its last one
// ([Guard.Readopt]).
//
// # Adoption
//
// One transaction locks the row, checks again, and
//
//   - raises all epochs, so that no dispatcher continues with what it remembers;
//   - moves all sequences beyond every number that may have been drawn and forgotten;
//   - makes claims read the tenants' settings again;
//   - stores the identity of the server and a new incarnation.
//
// Processes tag what they remember of a database with its incarnation ([Guard.Incarnation])
// and forget it when that has changed.
//
// # What is not noticed
//
// Connections to a former primary that still runs stay valid until a new connection finds
// the new one. Whoever promotes a standby must stop the former primary.
package identity
