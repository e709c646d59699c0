package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
)

type checkpointListOptions struct {
	configFlag
	out  io.Writer
	json bool
}

func newCheckpointListCommand(a *app) *cobra.Command {
	opts := checkpointListOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all publishers of the database",
		Long: "Lists every publisher that has a stored position in the database, with its slot, how far behind it is, the WAL that its\n" +
			"slot holds back, and what is parked. It reads only, and works whether or not relays run.",
		Example: "  postrider checkpoint list\n  postrider checkpoint list --json",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return opts.run(cmd.Context()) },
	}
	opts.add(cmd)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *checkpointListOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	return withSQL(ctx, cfg, "checkpoint list", func(conn *pgx.Conn) error {
		list, err := checkpoint.List(ctx, conn)
		if err != nil {
			return err
		}
		if o.json {
			return writeJSON(o.out, list)
		}
		return printPublishers(o.out, list)
	})
}

func printPublishers(out io.Writer, list checkpoint.Listing) error {
	if len(list.Publishers) == 0 {
		_, err := fmt.Fprintln(out, "no publisher has a stored position in this database")
		return err
	}
	g := newGrid(out, "PUBLISHER", "SLOT", "STATE", "STORED", "BEHIND", "HELD BACK", "PARKED")
	for i := range list.Publishers {
		l := &list.Publishers[i]
		g.row(l.Publisher, l.Slot, stateText(l), lsnText(l.Stored), bytesText(l.BytesBehind), bytesText(l.BytesHeld), l.Parked)
	}
	return g.flush()
}

// stateText is one word on whether anything comes from the slot.
func stateText(l *checkpoint.Listed) string {
	switch {
	case !l.SlotExists:
		return "no slot"
	case l.WALStatus == "lost":
		return "lost"
	case l.PausedAt != nil && l.SlotActive:
		return "paused"
	case l.SlotActive:
		return "running"
	default:
		return "stopped"
	}
}
