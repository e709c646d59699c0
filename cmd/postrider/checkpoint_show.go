package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
)

type checkpointShowOptions struct {
	configFlag
	out  io.Writer
	json bool
}

func newCheckpointShowCommand(a *app) *cobra.Command {
	opts := checkpointShowOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show where the relay stands",
		Long: "Shows the slot, the stored and the confirmed position, the WAL that the slot holds back, how far behind it is,\n" +
			"and who holds it. It reads only, and works whether or not a relay runs.",
		Example: "  postrider checkpoint show\n  postrider checkpoint show --json | jq .bytes_held",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return opts.run(cmd.Context()) },
	}
	opts.add(cmd)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *checkpointShowOptions) run(ctx context.Context) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	return withSQL(ctx, cfg, "checkpoint show", func(conn *pgx.Conn) error {
		status, err := checkpoint.ReadStatus(ctx, conn, cfg.Publisher.Name, cfg.Postgres.Slot)
		if err != nil {
			return err
		}
		if o.json {
			return writeJSON(o.out, status)
		}
		return printStatus(o.out, status)
	})
}

func printStatus(out io.Writer, s checkpoint.Status) error {
	t := newTable(out)
	t.row("publisher", "%s", s.Publisher)
	t.row("slot", "%s", slotText(s))
	t.row("stored", "%s", storedText(s))
	t.row("confirmed", "%s", lsnText(s.Confirmed))
	t.row("restart", "%s", lsnText(s.Restart))
	t.row("current WAL", "%s", s.Current)
	t.row("behind", "%s", bytesText(s.BytesBehind))
	t.row("held back", "%s", bytesText(s.BytesHeld))
	if s.SafeWALSize != nil {
		t.row("until lost", "%s", bytesText(s.SafeWALSize))
	}
	t.row("oldest unconfirmed", "%s", oldestText(s))
	t.row("published", "%d events", s.EventsPublished)
	t.row("holder", "%s", holderText(s))
	if s.PausedAt != nil {
		t.row("paused", "since %s by %s", s.PausedAt.UTC().Format(time.RFC3339), s.PausedBy)
	}
	return t.flush()
}

func slotText(s checkpoint.Status) string {
	switch {
	case !s.SlotExists:
		return s.Slot + " (does not exist)"
	case s.SlotActive:
		return fmt.Sprintf("%s (active, WAL %s)", s.Slot, s.WALStatus)
	default:
		return fmt.Sprintf("%s (not active, WAL %s)", s.Slot, s.WALStatus)
	}
}

func storedText(s checkpoint.Status) string {
	text := lsnText(s.Stored)
	if s.UpdatedAt != nil {
		text += ", written " + s.UpdatedAt.UTC().Format(time.RFC3339)
	}
	if s.Idle {
		text += ", idle"
	}
	return text
}

func lsnText(lsn *string) string {
	if lsn == nil {
		return "none"
	}
	return *lsn
}

func oldestText(s checkpoint.Status) string {
	if s.OldestUnconfirmedSeconds == nil {
		return "none"
	}
	age := time.Duration(*s.OldestUnconfirmedSeconds * float64(time.Second))
	return age.Round(time.Second).String()
}

func holderText(s checkpoint.Status) string {
	switch {
	case s.Holder == "":
		return "none"
	case s.Holding:
		return s.Holder
	default:
		return s.Holder + " (not connected)"
	}
}

// bytesText is for people: powers of 1024 with one decimal.
func bytesText(n *int64) string {
	if n == nil {
		return "unknown"
	}
	value, unit := float64(*n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", *n)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
