// Package operate measures what operators do to a large store: lists, and bulk
// operations, over rows of the near tier and packed tasks alike.
//
// # What is there
//
// Tasks are stored by the bulk path: of a large tenant that has half of them, in
// five kinds; of a medium and a small one with the same kinds; and of a thousand
// others. A tenth is due within the horizon and so lies in rows, the rest is spread
// over days in packs. Nothing of it is due before the run is expected to be over.
//
// # Lists
//
// First a tenth of the tasks is stored and every list is measured, then the rest,
// and every list again: a page whose cost depends on how much there is shows as a
// ratio above 1. A list that ends is begun again until so many pages were read.
// Processor time is that of a stretch of pages, less what the idle programs use.
// Some lists are read to their end, and must meet each task that was stored.
//
// # Bulk operations
//
// Each works on a kind of the large tenant, a tenth of all tasks, beside a steady
// tenant whose tasks are added, called and checked all the time. After each of them
// everything is read back. The tasks are counted and summed up by kind, each with
// its id, instant, params, tags, with how many are paused, and with whether the state
// and the due instant fit: the kind must have become what was asked for, in the
// number that the dry run had said and the operation tells, and everything else must
// be as it was.
package operate
