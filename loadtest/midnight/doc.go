// Package midnight makes very many tasks due at one instant, with or without a
// window that they are spread over, and judges how an installation takes it.
//
// The tasks are added by the API before their instant, further ahead than the
// horizon, so that they wait in packs and are promoted, claimed, published, called
// and reported like all others. Some more one-shots, due second by second during
// and after the burst, stand for everybody else.
//
// # What is judged
//
//   - With a window: the calls by equal parts of it. Each part is so long that
//     10,000 calls are expected in it, so that chance alone moves it by 1 %, and by
//     5 % less than once in a million parts. The largest deviation from the mean may
//     be 5 %.
//   - No transaction over the cap: each dispatcher's own figure of its largest claim
//     since it started, perceptor_claim_rows_max, against dispatcher.max_rows.
//   - Memory: the most that each program ever had resident, as the kernel counts it,
//     against what it had before the instant and a room of [Room]: it does not depend
//     on how many tasks are due.
//   - Without a window: lateness falls steadily. Rows are claimed by their age, so who
//     is due s seconds after the burst waits for what is left of it. The median of the
//     others' lateness, second by second, must fall from its peak on, by no more than a
//     tenth of the peak (at least 1 s) up again in between, and down to that in the end.
//   - Every task against the contract, as package check does.
package midnight
