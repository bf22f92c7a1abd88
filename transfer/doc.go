// Package transfer reads tasks from files and tables, and packs them into the chunks of an
// import (ImportService of the API).
//
// # Steps
//
// A [Source] yields one [Line] after another. A line has what is its own in fields: begin_time,
// idempotency_key, params. All else, which many lines have in common, it only identifies, by the
// bytes of [Line.Terms]. The [Builder] appends lines to the columns of a chunk, and asks the source
// for the task that terms stand for only when a chunk has them for the first time. So the
// work for a line is a few copies and one look-up, and nothing is allocated for it.
//
//	file → decompress → split into lines → Line → Builder → Chunk (compressed)
//
// Sources of tables ([OpenCSV], [OpenParquet], [OpenSQL]) share [Columns], which says what each column means.
// [OpenJSON] reads the JSON of the HTTP API: by a parser of its own if a line has a usual form, otherwise
// by protojson. A fuzz test holds the first against the second. [FromTasks] makes a source of
// tasks that some other program has.
//
// # Invariants
//
//   - The same input and options always give the same chunks under the same numbers. An import
//     that continues relies on it, and the checksum of a chunk shows when it is not so.
//   - A line that cannot be read is a [*Fault], with its position, and the next line follows. Any other error
//     ends the source.
//   - Memory is bounded: a line has at most [MaxLine] bytes, a table at most [MaxColumns] columns, a chunk at most
//     [MaxChunkLines] lines and [MaxChunkBytes].
//   - Params are in canonical form: sorted by key, without duplicates.
//
// Rules about values, such as the shortest interval, are those of the server, which validates
// every line as AddTask does. Here only what cannot be converted is refused.
package transfer
