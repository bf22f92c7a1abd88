// Package migrate reads the schedules of other schedulers from their tables in PostgreSQL, and says which
// task of Perceptor stands for each, or why none does.
//
// [Open] reads all in one read-only snapshot, by a cursor. Rows become [Item]s by pure functions, one file for each
// scheduler: quartz.go (the JDBC job store), dbscheduler.go, river.go. An item has the task in the form of
// AddTask with an idempotency_key that is derived from the schedule's name, so that importing it
// again, or adding it by the new program, stores nothing twice; how far the schedule has come; and notes, where
// Perceptor does something differently. The pages docs/migrate-from-*.md explain the mappings.
//
// java.go reads what Java programs store in columns: properties, and serialized maps of texts and numbers.
package migrate
