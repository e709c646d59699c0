package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/verify"
)

// evidenceNames is how many rows that may be missing the audit keeps by name.
const evidenceNames = 1000

type checkpointAcceptOptions struct {
	configFlag
	app    *app
	yes    bool
	reason string
	json   bool
}

// acceptResult is what `checkpoint accept --json` prints.
type acceptResult struct {
	// Needed is false where a run would start as it is, so that there is nothing to accept.
	Needed   bool                 `json:"needed" doc:"false where a run would start as it is"`
	Evidence verify.Report        `json:"evidence" doc:"what checkpoint verify prints"`
	Accepted *checkpoint.Accepted `json:"accepted" doc:"what was changed; null where nothing was"`
}

func newCheckpointAcceptCommand(a *app) *cobra.Command {
	opts := checkpointAcceptOptions{app: a}
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Go on from where the slot stands, whatever may be missing",
		Long: "For a run that refuses to start because slot, server or timeline are not those of the stored position: shows the evidence of\n" +
			"`checkpoint verify`, and with --yes stores the slot's position as the published one. Events that lie between are given up:\n" +
			"they stay in the table, and `postrider replay` publishes them; `postrider recover` instead finds and publishes them itself.\n" +
			"Nothing is changed while a relay holds the slot. Who, when, why and the evidence are kept in the audit.",
		Example: "  postrider checkpoint accept\n  postrider checkpoint accept --yes --reason \"slot recreated after the disk was full, INC-812\"",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.yes {
				if err := needReason(opts.reason); err != nil {
					return usageError(cmd, err)
				}
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	cmd.Flags().BoolVar(&opts.yes, "yes", false, "accept; without it the evidence is shown and nothing is changed")
	addReason(cmd, &opts.reason)
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *checkpointAcceptOptions) run(ctx context.Context) error {
	return o.withPosition(ctx, "accept", func(ctx context.Context, p *position) error {
		if err := checkpoint.LockPublisher(ctx, p.conn, p.cfg.Publisher.Name); err != nil {
			return err
		}
		var result acceptResult
		err := o.accept(ctx, p, &result)
		if result.Evidence.Checks == nil {
			return err // it could not be looked at
		}
		return errors.Join(err, o.print(p, result))
	})
}

func (o *checkpointAcceptOptions) accept(ctx context.Context, p *position, result *acceptResult) error {
	evidence, err := p.verify(ctx, o.app.err, verify.Options{Names: evidenceNames})
	if err != nil {
		return err
	}
	result.Evidence = evidence
	st := evidence.Standing
	// A start that has to be proved, and can be, needs nobody's consent.
	result.Needed = !evidence.Proved()
	if !result.Needed {
		return nil
	}
	if err := checkpoint.CheckAccept(st.State); err != nil {
		return err
	}
	if !o.yes {
		return &operr.Error{
			Class: operr.Config, Op: "accept", Subject: fmt.Sprintf("position %s of slot %q", st.State.Slot.Confirmed, st.State.Slot.Name),
			Err:  errors.New("nothing was changed: it takes --yes and --reason"),
			Hint: "the same with --yes --reason WORDS; or first " + st.Hint(),
		}
	}
	accepted, err := p.desk.Accept(ctx, st.State, st.History, map[string]any{"reason": o.reason, "evidence": evidence})
	if err != nil {
		return err
	}
	result.Accepted = &accepted
	return nil
}

func (o *checkpointAcceptOptions) print(p *position, r acceptResult) error {
	if o.json {
		return writeJSON(o.app.out, r)
	}
	shown := r.Evidence
	if t := shown.Table; t != nil && len(t.Names) > 10 {
		short := *t
		short.Names = append(short.Names[:10:10], "…")
		shown.Table = &short
	}
	if err := printVerify(o.app.out, shown); err != nil {
		return err
	}
	switch {
	case !r.Needed:
		_, err := fmt.Fprintln(o.app.out, "nothing to accept: a run starts as it is")
		return err
	case r.Accepted == nil:
		return nil
	}
	a := r.Accepted
	_, err := fmt.Fprintf(o.app.out, "accepted: publisher %s goes on from %s of slot %s (stored was %s)\n", p.cfg.Publisher.Name, a.To, a.Slot, a.From)
	return err
}
