package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/replication"
)

type checkpointDropOptions struct {
	configFlag
	app         *app
	confirm     string
	reason      string
	publication bool
	json        bool
}

// dropResult is what `checkpoint drop --json` prints.
type dropResult struct {
	Publisher  string                `json:"publisher" doc:"what is to go"`
	Slot       string                `json:"slot" doc:"its slot"`
	SlotExists bool                  `json:"slot_exists" doc:"whether it is there"`
	Belongings checkpoint.Belongings `json:"belongings" doc:"its rows in schema postrider"`
	// Unpublished is null where it could not be counted; Uncounted says why.
	Unpublished *peek.Report `json:"unpublished" doc:"what is committed and not published, as in checkpoint peek; null where it could not be counted"`
	Uncounted   string       `json:"uncounted,omitempty" doc:"why it could not be counted"`
	Dropped     []string     `json:"dropped" doc:"what is gone"`
}

func newCheckpointDropCommand(a *app) *cobra.Command {
	opts := checkpointDropOptions{app: a}
	cmd := &cobra.Command{
		Use:   "drop",
		Short: "Decommission the publisher: slot, position, parked events",
		Long: "Removes the slot, so that it holds back no WAL, and all that belongs to the publisher in schema postrider but the audit: the\n" +
			"position, parked events, tasks. Without --confirm it shows what would go and what would never be published, and changes\n" +
			"nothing. The outbox table is left alone, and so is the publication without --publication: who else reads it cannot be known.\n" +
			"A publication that has other tables is never dropped. Nothing is dropped while a relay holds the slot.",
		Example: "  postrider checkpoint drop\n  postrider checkpoint drop --confirm orders --publication --reason \"moved to the new cluster, CHG-1\"",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.confirm != "" {
				if err := needReason(opts.reason); err != nil {
					return usageError(cmd, err)
				}
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	cmd.Flags().StringVar(&opts.confirm, "confirm", "", "the publisher's `name`, typed out; without it nothing is changed")
	cmd.Flags().BoolVar(&opts.publication, "publication", false, "drop the publication too, if all its tables are this publisher's sources")
	addReason(cmd, &opts.reason)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *checkpointDropOptions) run(ctx context.Context) error {
	return o.withPosition(ctx, "drop", func(ctx context.Context, p *position) error {
		if err := checkpoint.LockPublisher(ctx, p.conn, p.cfg.Publisher.Name); err != nil {
			return err
		}
		result := dropResult{Publisher: p.cfg.Publisher.Name, Slot: p.cfg.Postgres.Slot, Dropped: []string{}}
		err := o.drop(ctx, p, &result)
		if o.json {
			return errors.Join(err, writeJSON(o.app.out, result))
		}
		return err
	})
}

func (o *checkpointDropOptions) drop(ctx context.Context, p *position, result *dropResult) error {
	st, err := p.desk.Look(ctx)
	if err != nil {
		return err
	}
	if st.Holder != nil {
		return checkpoint.HeldError("drop", p.cfg.Postgres.Slot, *st.Holder)
	}
	if err := o.look(ctx, p, st, result); err != nil {
		return err
	}
	publication, err := o.whichPublication(ctx, p)
	if err != nil {
		return err
	}
	if !o.json {
		if err := printDrop(o.app.out, *result, st, publication); err != nil {
			return err
		}
	}
	if o.confirm != p.cfg.Publisher.Name {
		return o.unconfirmed(p.cfg.Publisher.Name)
	}
	detail := map[string]any{"reason": o.reason, "belongings": result.Belongings, "stored_lsn": storedLSN(st)}
	if result.Unpublished != nil {
		detail["unpublished"] = map[string]any{"events": result.Unpublished.Events, "types": countedTypes(*result.Unpublished), "complete": result.Unpublished.Complete}
	}
	return p.desk.Drop(ctx, checkpoint.DropPlan{Slot: st.Slot.Exists, Publication: publication}, detail, func(step string) error {
		result.Dropped = append(result.Dropped, step)
		if o.json {
			return nil
		}
		return tell(o.app.out, "dropped %s", step)
	})
}

// look counts what would be lost.
func (o *checkpointDropOptions) look(ctx context.Context, p *position, st checkpoint.State, result *dropResult) (err error) {
	result.SlotExists = st.Slot.Exists
	if result.Belongings, err = p.desk.Belongings(ctx); err != nil || !st.Slot.Exists {
		return err
	}
	slot, err := replication.ReadSlot(ctx, p.conn, p.cfg.Postgres.Slot)
	if err != nil {
		return err
	}
	// Somebody else's slot is not ours to drop; a lost one is.
	if problem := slot.Problem(p.conn.Config().Database); problem != nil && !slot.Lost() {
		return problem
	}
	report, err := p.unpublished(ctx, o.app.err, peek.Options{Max: defaultPeekEvents})
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil:
		result.Uncounted = err.Error()
	default:
		result.Unpublished = &report
	}
	return nil
}

// whichPublication names the one to drop, or refuses one that is not this publisher's alone.
func (o *checkpointDropOptions) whichPublication(ctx context.Context, p *position) (string, error) {
	if !o.publication {
		return "", nil
	}
	if err := onePublication(p.cfg); err != nil {
		return "", err
	}
	name := p.cfg.Postgres.Publication[0]
	others, err := replication.OtherMembers(ctx, p.conn, name, p.peek.Tables())
	if err != nil {
		return "", err
	}
	if others != "" {
		return "", &operr.Error{
			Class: operr.Config, Op: "drop", Subject: fmt.Sprintf("publication %q", name),
			Err:  fmt.Errorf("it is not this publisher's alone: it has %s", others),
			Hint: "the same without --publication, which leaves it",
		}
	}
	return name, nil
}

func (o *checkpointDropOptions) unconfirmed(publisher string) error {
	e := &operr.Error{
		Class: operr.Config, Op: "drop", Subject: "publisher " + publisher, Err: errors.New("nothing was changed: it takes --confirm and --reason"),
		Hint: fmt.Sprintf("the same with --confirm %s --reason WORDS", publisher),
	}
	if o.confirm != "" {
		e.Err = fmt.Errorf("nothing was changed: --confirm is %q", o.confirm)
	}
	return e
}

func storedLSN(st checkpoint.State) any {
	if st.Row == nil {
		return nil
	}
	return st.Row.Confirmed
}

func printDrop(out io.Writer, r dropResult, st checkpoint.State, publication string) error {
	t := newTable(out)
	t.row("publisher", "%s", r.Publisher)
	if r.SlotExists {
		t.row("slot", "%s, at %s", r.Slot, st.Slot.Confirmed)
	} else {
		t.row("slot", "%s (does not exist)", r.Slot)
	}
	switch {
	case r.Unpublished != nil:
		t.row("never published", "%s", unpublishedText(*r.Unpublished))
	case r.Uncounted != "":
		t.row("never published", "not known: %s", r.Uncounted)
	}
	b := r.Belongings
	t.row("parked", "%d events outstanding, %d done", b.Parked, b.ParkedDone)
	t.row("tasks", "%d, of which %d are open", b.Tasks, b.TasksOpen)
	if b.Receipts {
		t.row("receipts", "all of them")
	}
	if st.Row != nil && st.Row.Slot != r.Slot {
		t.row("stays", "slot %s, to which the stored position belongs", st.Row.Slot)
	}
	if publication != "" {
		t.row("publication", "%s", publication)
	}
	return t.flush()
}
