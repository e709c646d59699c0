package contender

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/postrider/postrider/bench/rig"
)

// Postrider is the product: its static binary with everything on that it has on by default. Variants differ in one key.
type Postrider struct {
	// Binary is one to use instead of building it.
	Binary string
	// Compression is kafka.compression; "" is none.
	Compression string
	// TLS encrypts both ends.
	TLS bool

	version string
}

// Name is "postrider", with the variant behind a hyphen.
func (p *Postrider) Name() string {
	switch {
	case p.TLS:
		return "postrider-tls"
	case p.Compression != "":
		return "postrider-" + p.Compression
	}
	return "postrider"
}

// Describe gives what the variant sets.
func (p *Postrider) Describe() string {
	const base = "defaults (profile default; acks=all, idempotent, checkpoint, checks and metrics on)"
	switch {
	case p.TLS:
		return base + "; TLS to PostgreSQL (verify-full), and to a Kafka of its own by TLS with SCRAM-SHA-512"
	case p.Compression != "":
		return base + "; compression " + p.Compression
	}
	return base + "; static binary, one process"
}

// Versions is what the binary says of itself.
func (p *Postrider) Versions() map[string]string { return map[string]string{"postrider": p.version} }

// Source is a slot.
func (p *Postrider) Source() Source { return FromSlot }

// SpeaksTLS is for the TLS variant.
func (p *Postrider) SpeaksTLS() bool { return p.TLS }

// Prepare builds the binary as `make build` does.
func (p *Postrider) Prepare(ctx context.Context, r *rig.Rig) error {
	bin := p.bin(r)
	if p.Binary == "" {
		flags := "-s -w"
		if v, err := output(ctx, r.Root(), "git", "describe", "--tags", "--always", "--dirty"); err == nil {
			flags += " -X main.version=" + v
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", flags, "-o", bin, "./cmd/postrider")
		cmd.Dir, cmd.Env = r.Root(), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build postrider: %w\n%s", err, strings.TrimSpace(string(out)))
		}
	}
	version, err := output(ctx, r.Root(), bin, "version")
	if err != nil {
		return err
	}
	p.version, _, _ = strings.Cut(strings.TrimPrefix(version, "postrider "), "\n")
	return nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (p *Postrider) bin(r *rig.Rig) string {
	if p.Binary != "" {
		return p.Binary
	}
	return filepath.Join(r.BinDir(), "postrider")
}

// Start writes the configuration, runs `postrider setup` and starts `postrider run`.
func (p *Postrider) Start(ctx context.Context, job Job) (*rig.Process, error) {
	text, err := yaml.Marshal(p.config(job))
	if err != nil {
		return nil, err
	}
	file := filepath.Join(job.WorkDir, "postrider.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	bin := p.bin(job.Rig)
	if out, err := exec.CommandContext(ctx, bin, "setup", "--config", file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("postrider setup: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return rig.Start(rig.Command{Path: bin, Args: []string{"run", "--config", file}, Dir: job.WorkDir, LogFile: job.LogFile})
}

type object = map[string]any

func (p *Postrider) config(job Job) object {
	kafka := object{"brokers": job.Brokers}
	dsn := job.Rig.DSN()
	if p.Compression != "" {
		kafka["compression"] = p.Compression
	}
	if p.TLS {
		dsn = strings.Replace(dsn, "sslmode=disable", job.Rig.TLSParams(), 1)
		kafka["brokers"] = job.Secure.Bootstrap()
		kafka["tls"] = object{"ca_file": job.Secure.CAFile}
		kafka["sasl"] = object{"mechanism": "SCRAM-SHA-512", "username": job.Secure.User, "password": job.Secure.Password}
	}
	return object{
		"publisher": object{"name": job.Name},
		"postgres":  object{"dsn": dsn, "slot": job.Slot, "publication": job.Publication},
		"kafka":     kafka,
		"sources": []object{{
			"table": "public." + job.Table, "profile": "default", "routes": []object{{"topic": job.Topic}},
		}},
		"admin": object{"listen": job.AdminAddr},
	}
}

// BatchMean reads the histogram of batches from /metrics.
func (p *Postrider) BatchMean(ctx context.Context, job Job) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+job.AdminAddr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return batchMean(resp.Body)
}

var errNoBatches = errors.New("no batches among the metrics")

// number reads the value of a sample line.
func number(line, name string) (float64, bool) {
	value, found := strings.CutPrefix(line, name+" ")
	if !found {
		return 0, false
	}
	v, err := strconv.ParseFloat(value, 64)
	return v, err == nil
}
