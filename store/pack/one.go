package pack

import (
	"fmt"

	"github.com/perceptor/perceptor/task"
)

// One is one task of a pack. The other tasks are not built, which takes most of the time and
// memory of [DecodeKeys]: a megabyte for 2,048 tasks.
type One struct {
	// Row has no params until FillParams sets them.
	Row *task.Row
	at  int    // its place
	n   int    // of all tasks of the pack
	sum uint32 // of their ids
}

// FindOne returns the task with an id, or nil if the pack does not have it. An error matches
// [ErrDamaged] or [ErrNewer].
func FindOne(keys []byte, tenant int32, id task.ID) (one *One, err error) {
	err = withKeys(keys, func(d *decoded) error {
		for i := range d.n {
			if d.id(i) != id || d.tenant(i) != tenant {
				continue
			}
			one = &One{Row: &task.Row{}, at: i, n: d.n, sum: idSum(d.n, d.id)}
			return d.build(i, one.Row)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return one, nil
}

// FillParams sets the params of the row from those of its pack. An error matches [ErrDamaged] or
// [ErrNewer].
func (o *One) FillParams(params []byte) (err error) {
	defer recovered(&err)
	room := rooms.Get().(*room)
	defer rooms.Put(room)
	content, err := room.open(paramsMagic, params)
	if err != nil {
		return fmt.Errorf("params: %w", err)
	}
	return readParams(content, o.n, o.sum, func(i int, b []byte) {
		if i == o.at {
			o.Row.Params = append([]byte{}, b...)
		}
	})
}
