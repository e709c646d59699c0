package publisher

import "context"

// ProbeProducerID asks the brokers for a producer id, as publishing will, and leaves it:
// nothing is published. The error is an *operr.Error that says what to grant.
func ProbeProducerID(ctx context.Context, cfg Config) error {
	p, err := New(cfg)
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // a prober holds nothing that could be lost
	return p.probeProducerID(ctx)
}
