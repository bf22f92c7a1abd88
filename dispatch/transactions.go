package dispatch

import "context"

// A transactions admits the transactions of one database: one at a time on its owned shards,
// and a bounded number over all databases.
type transactions struct {
	// own holds one token. places is common to all databases.
	own, places chan struct{}
}

func newTransactions(places chan struct{}) transactions {
	return transactions{own: make(chan struct{}, 1), places: places}
}

// begin waits until a transaction is admitted. It returns false if ctx ends first.
func (t transactions) begin(ctx context.Context) bool {
	select {
	case t.own <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	select {
	case t.places <- struct{}{}:
		return true
	case <-ctx.Done():
		<-t.own
		return false
	}
}

func (t transactions) end() {
	<-t.places
	<-t.own
}
