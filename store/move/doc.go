// Package move moves a logical database to another PostgreSQL server while programs use it.
// docs/adr/0053-moving-a-database.md has the protocol and its reasons, package place what each
// copy says of itself.
//
// # Steps
//
// A move copies and follows by logical replication, and switches in a pause of about half a
// second. All that it must remember is in the databases: the target and the step in the row of
// the old copy, the number and the old place in that of the new one. So [Mover.Run] finds out
// how far a move is, and continues it, whoever began it and whatever was killed; and
// [Mover.Abort] ends it at every moment before the switch.
//
// The switch is the commit of one transaction at the old place. Before it nothing depends on
// the new copy; after it nothing depends on the old one, and every program can complete the move
// by opening the new copy.
package move
