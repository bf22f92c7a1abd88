package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/task"
)

func (c *ctl) assignItems() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "items", Short: "Show the current and the requested owner of each item, and its epoch", Args: cobra.NoArgs,
		Long: "Show the current and the requested owner of each item, as Postgres or ZooKeeper has them, and its epoch, as Postgres has it.\n" +
			"An item has no current owner while it is handed over, and two while one takes over from the other.\n" +
			"Epochs are missing if only ZooKeeper is configured, or Postgres does not answer.",
	}
	c.seen(cmd, func(o assign.Overview, epochs func() (map[int]int64, error)) error {
		lines := itemLines(o)
		of, err := epochs()
		for i := range lines {
			lines[i].Epoch = of[lines[i].Item]
		}
		err = errors.Join(faultsOf(o), err)
		if c.structured() {
			return errors.Join(c.writeData(cmd, lines), err)
		}
		return errors.Join(itemTable(lines, all).write(cmd.OutOrStdout()), err)
	})
	cmd.Flags().BoolVar(&all, "all", false, "print one line for each item instead of one for each range with the same owner")
	return cmd
}

// itemLine is one item in the output.
type itemLine struct {
	Item      int      `json:"item"`
	Chores    bool     `json:"chores,omitempty"`
	Current   []string `json:"current"`
	Requested string   `json:"requested,omitempty"`
	Without   string   `json:"without,omitempty"`
	PinnedTo  string   `json:"pinnedTo,omitempty"`
	Epoch     int64    `json:"epoch,omitempty"`
}

func itemLines(o assign.Overview) []itemLine {
	lines := []itemLine{}
	for _, it := range o.Items {
		l := itemLine{
			Item: it.ID, Chores: it.ID >= task.Shards, Current: []string{}, Without: string(it.Without), PinnedTo: o.Strategy.Pins[it.ID],
		}
		for _, id := range it.Current {
			l.Current = append(l.Current, nameOf(o, id))
		}
		if it.Requested != "" {
			l.Requested = nameOf(o, it.Requested)
		}
		lines = append(lines, l)
	}
	return lines
}

// epochsIn reads the epochs of all items, if Postgres is configured.
func epochsIn(ctx context.Context, conf *config.Config) (map[int]int64, error) {
	if len(conf.Postgres.Servers) == 0 {
		return nil, nil
	}
	owners, err := readOwners(ctx, conf)
	epochs := map[int]int64{}
	for _, o := range owners {
		epochs[o.Shard] = o.Epoch
	}
	return epochs, err
}

// alike reports whether a and its neighbour b share a line.
func (a itemLine) alike(b itemLine) bool {
	return slices.Equal(a.Current, b.Current) && a.Requested == b.Requested && a.Without == b.Without && a.PinnedTo == b.PinnedTo && a.Chores == b.Chores
}

func itemTable(lines []itemLine, all bool) *table {
	t := &table{head: []string{"ITEMS", "COUNT", "CURRENT", "REQUESTED", "WITHOUT OWNER", "PINNED TO", "EPOCHS"}}
	for i := 0; i < len(lines); {
		first, n := lines[i], 1
		low, high := first.Epoch, first.Epoch
		for ; !all && i+n < len(lines) && first.alike(lines[i+n]) && lines[i+n].Item == first.Item+n; n++ {
			low, high = min(low, lines[i+n].Epoch), max(high, lines[i+n].Epoch)
		}
		name := span(first.Item, first.Item+n-1)
		if first.Chores {
			name = "chores " + span(first.Item-task.Shards, first.Item-task.Shards+n-1)
		}
		epochs := ""
		if high > 0 {
			epochs = span64(low, high)
		}
		t.add(name, strconv.Itoa(n), textCell(strings.Join(first.Current, ",")), textCell(first.Requested),
			textCell(first.Without), textCell(first.PinnedTo), textCell(epochs))
		i += n
	}
	return t
}
