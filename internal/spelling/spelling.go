// Package spelling tells how far a word is from the one that may be meant, for messages that suggest it.
package spelling

// Distance returns the number of letters to insert, delete or replace to make b of a: the Levenshtein
// distance, by the usual table, of which one row is kept. It compares bytes, and takes len(a) * len(b) steps.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
