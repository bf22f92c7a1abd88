// Package pack packs many far tasks into two blobs.
package pack

import (
	"errors"

	"github.com/perceptor/perceptor/task"
)

// MaxTasks is the most tasks that one pack holds.
const MaxTasks = 4096

// MaxParams is the most bytes of params, all tasks together, in one pack.
const MaxParams = 16 << 20

// ErrDamaged is matched by every error that says that a blob cannot be read: it
// was cut or changed, or it is of a version or has parts that this program does
// not know.
var ErrDamaged = errors.New("damaged pack")

// Pack holds the two blobs of some tasks, and what a row of far_arrival or
// far_pack says about them.
type Pack struct {
	Keys, Params         []byte
	N                    int
	MinTenant, MaxTenant int32
	MinID, MaxID         task.ID
}

// Fit returns how many of the leading rows fit into one pack of at most most
// tasks: at least 1, unless rows is empty.
func Fit(rows []*task.Row, most int) int {
	most = min(len(rows), most, MaxTasks)
	bytes := 0
	for i := range most {
		bytes += len(rows[i].Params)
		if i > 0 && bytes > MaxParams {
			return i
		}
	}
	return most
}

// Encode packs rows.
func Encode(rows []*task.Row, fast bool) (Pack, error) {
	return Pack{}, errors.New("not written yet")
}

// Decode returns the rows of a pack.
func Decode(keys, params []byte) ([]*task.Row, error) {
	return nil, errors.New("not written yet")
}

// DecodeKeys returns the rows of a pack without their params.
func DecodeKeys(keys []byte) ([]*task.Row, error) {
	return nil, errors.New("not written yet")
}

// FillParams sets the params of those rows of a pack that want chooses; nil
// chooses all.
func FillParams(rows []*task.Row, params []byte, want func(i int) bool) error {
	return errors.New("not written yet")
}
