package main

import (
	"context"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/parking"
)

type parkedExportOptions struct {
	configFlag
	parkedFilter
	out     io.Writer
	payload bool
}

func newParkedExportCommand(a *app) *cobra.Command {
	opts := parkedExportOptions{out: a.out}
	cmd := &cobra.Command{
		Use:   "export [number...]",
		Short: "Write parked events as lines of JSON",
		Long: "Writes one JSON object a line, oldest event first, with the fields of `parked list --json`. With --payload each has key,\n" +
			"value and headers too, in base64: they may be private.",
		Example: "  postrider parked export --type PaymentTaken --payload > payments.jsonl\n  postrider parked export --state all | jq -r .event_id",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.finish(args, false); err != nil {
				return usageError(cmd, err)
			}
			return opts.run(cmd.Context())
		},
	}
	opts.configFlag.add(cmd)
	opts.parkedFilter.add(cmd)
	opts.addStates(cmd, "those not done: parked, retry, publishing")
	cmd.Flags().BoolVar(&opts.payload, "payload", false, "with key, headers and payload")
	return cmd
}

func (o *parkedExportOptions) run(ctx context.Context) error {
	return o.withDesk(ctx, "export", func(ctx context.Context, desk *parking.Desk) error {
		enc := json.NewEncoder(o.out)
		enc.SetEscapeHTML(false)
		return desk.Each(ctx, o.Filter, func(e *parking.Detail) error {
			if !o.payload {
				e.Key, e.Value, e.Headers = nil, nil, nil
			}
			return enc.Encode(e)
		})
	})
}
