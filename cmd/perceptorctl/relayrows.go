package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/client/outbox"
	"github.com/perceptor/perceptor/internal/cli"
)

// refusedPage is the most operations of one statement.
const refusedPage = 1000

func (r *relay) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the statements that create an outbox", Args: cobra.NoArgs,
		Example: "  perceptorctl relay schema | psql service=shop",
		RunE: func(cmd *cobra.Command, _ []string) error {
			box, err := r.outbox()
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), box.Schema())
			return err
		},
	}
}

func (r *relay) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "migrate", Short: "Create or upgrade an outbox", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.with(cmd, func(ctx context.Context, box *outbox.Outbox, conn *pgx.Conn) error {
				err := box.Migrate(ctx, conn)
				if err == nil && cmd.Flags().Changed("announce") {
					err = box.Announce(ctx, conn, r.announce)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&r.announce, "announce", false, "announce commits to the relays with --listen; --announce=false ends that (default: as it is)")
	return cmd
}

func (r *relay) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how many operations wait and how long", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.with(cmd, func(ctx context.Context, box *outbox.Outbox, conn *pgx.Conn) error {
				b, err := box.Backlog(ctx, conn)
				if err != nil {
					return err
				}
				if r.structured() {
					return r.writeData(cmd, map[string]any{"rows": b.Rows, "oldest_seconds": b.Oldest.Seconds(), "refused": b.Refused})
				}
				t := &table{head: []string{"WAITING", "OLDEST", "SET ASIDE"}}
				t.add(strconv.FormatInt(b.Rows, 10), b.Oldest.Round(time.Millisecond).String(), strconv.FormatInt(b.Refused, 10))
				return t.write(cmd.OutOrStdout())
			})
		},
	}
	return watchable(cmd)
}

// refusedOperation is an operation that was set aside, for programs.
type refusedOperation struct {
	Position  int64     `json:"position"`
	Op        string    `json:"op"`
	Key       string    `json:"key,omitempty"`
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	WrittenAt time.Time `json:"written_at"`
	RefusedAt time.Time `json:"refused_at"`
	Request   string    `json:"request"`
}

func (r *relay) listCommand() *cobra.Command {
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List operations that were set aside", Args: cobra.NoArgs,
		Long: "List operations that were set aside, because Perceptor refuses them for good or because they cannot be read.\n" +
			"The output formats wide, json and yaml have the requests, with params.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.with(cmd, func(ctx context.Context, box *outbox.Outbox, conn *pgx.Conn) error {
				list, err := box.ListRefused(ctx, conn, after, limit)
				if err != nil {
					return cli.Usagef("%v", err)
				}
				all := []refusedOperation{}
				t := &table{head: []string{"POSITION", "OP", "KEY", "REASON", "WRITTEN", "MESSAGE", "REQUEST"}, narrow: 6}
				for _, x := range list {
					all = append(all, refusedOperation{x.Position, x.Op.String(), x.Key, x.Reason, x.Message, x.WrittenAt.UTC(), x.RefusedAt.UTC(), x.Request})
					t.add(strconv.FormatInt(x.Position, 10), x.Op.String(), x.Key, x.Reason, x.WrittenAt.UTC().Format(time.RFC3339), x.Message, x.Request)
				}
				if r.structured() {
					return r.writeData(cmd, all)
				}
				if r.output != "wide" {
					t = t.cut()
				}
				return t.write(cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().Int64Var(&after, "after", 0, "only operations after this position")
	cmd.Flags().IntVar(&limit, "limit", 100, "the most operations, up to 1,000")
	return cmd
}

func (r *relay) retryCommand() *cobra.Command {
	return r.refusedCommand("retry", "Write operations that were set aside into the outbox again, behind all others", "written again", (*outbox.Outbox).RetryRefused)
}

func (r *relay) discardCommand() *cobra.Command {
	return r.refusedCommand("discard", "Delete operations that were set aside", "deleted", (*outbox.Outbox).DiscardRefused)
}

// refusedCommand returns a command that does something with operations that were set aside.
func (r *relay) refusedCommand(name, short, did string, do func(*outbox.Outbox, context.Context, outbox.Conn, []int64) (int, error)) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: name + " POSITION...", Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			positions, err := parsePositions(args)
			if err != nil {
				return err
			}
			if all == (len(args) > 0) {
				return cli.Usagef("give positions, or --all")
			}
			return r.with(cmd, func(ctx context.Context, box *outbox.Outbox, conn *pgx.Conn) error {
				n, err := 0, error(nil)
				if all {
					n, err = everyRefused(ctx, box, conn, do)
				} else {
					n, err = do(box, ctx, conn, positions)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%d %s\n", n, did)
				if err == nil && n < len(positions) {
					err = &cli.Error{Code: cli.NotFound, Err: fmt.Errorf("%d of %d positions are not set aside", len(positions)-n, len(positions))}
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all that are set aside now")
	return cmd
}

func parsePositions(args []string) ([]int64, error) {
	positions := make([]int64, len(args))
	for i, text := range args {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, cli.Usagef("%q is not a position", text)
		}
		positions[i] = n
	}
	return positions, nil
}

// everyRefused does something with all operations that are set aside now.
func everyRefused(ctx context.Context, box *outbox.Outbox, conn *pgx.Conn, do func(*outbox.Outbox, context.Context, outbox.Conn, []int64) (int, error)) (n int, err error) {
	var positions []int64
	for after := int64(0); ; after = positions[len(positions)-1] {
		list, err := box.ListRefused(ctx, conn, after, refusedPage)
		if err != nil {
			return 0, err
		}
		for _, x := range list {
			positions = append(positions, x.Position)
		}
		if len(list) < refusedPage {
			break
		}
	}
	for page := range slices.Chunk(positions, refusedPage) {
		did, err := do(box, ctx, conn, page)
		if n += did; err != nil {
			return n, err
		}
	}
	return n, nil
}
