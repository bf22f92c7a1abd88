// Package export stores the lines of an export: in one file, or as part files in a directory, so that
// an export that was interrupted continues.
//
// # Part files
//
// A directory has the parts tasks-00001.jsonl, tasks-00002.jsonl and so on, and export.json, the
// state. A part is written under another name, synced, and renamed when it is complete; then
// the state is replaced, with the parts and the position after them. So a part that has its name is
// complete, and the state never says more than what is on the disk. [Resume] compares the parts with their digests in the
// state, removes what was not complete and continues at the position of the state.
//
// # Each task once
//
// A stream of the service has each task once. One that continues may repeat tasks of the
// database in which it continues, because these have moved between tiers. So a [Writer] keeps
// the ids of the lines of the current database, in a compressed bitmap of about one bit for each
// task, drops lines that it has, and the state has the bitmap, too.
package export
