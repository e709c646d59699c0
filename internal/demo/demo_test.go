package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// endedBy is a screen that ends the run when it reads a milestone.
type endedBy struct {
	milestone string
	end       context.CancelFunc
	root      string
}

func (e *endedBy) Write(text []byte) (int, error) {
	if _, root, ok := strings.Cut(string(text), "configuration and log are in "); ok {
		e.root = strings.TrimSpace(root)
	}
	if strings.Contains(string(text), e.milestone) {
		e.end()
	}
	return len(text), nil
}

// A run that is ended early has no verdict, and leaves no folder; TestMain sees
// to the goroutines.
func TestEndedEarly(t *testing.T) {
	t.Parallel()
	for _, milestone := range []string{"starting PostgreSQL", "configuration and log"} {
		t.Run(milestone, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			screen := &endedBy{milestone: milestone, end: cancel}
			result, err := Run(ctx, Options{Binary: "/does/not/exist", Duration: DefaultDuration, Screen: screen})
			require.Nil(t, result)
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, operr.DrainIncomplete, operr.ClassOf(err))
			if screen.root != "" {
				require.NoDirExists(t, screen.root)
			}
		})
	}
}

// A program that cannot be started is an error, not a broken promise.
func TestWithoutRelayThereIsNoVerdict(t *testing.T) {
	t.Parallel()
	screen := &endedBy{milestone: "never", end: func() {}}
	result, err := Run(t.Context(), Options{Binary: "/does/not/exist", Duration: DefaultDuration, Screen: screen})
	require.Nil(t, result)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotEmpty(t, screen.root)
	require.NoDirExists(t, screen.root)
}

func TestDurationHasBounds(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{MinDuration, DefaultDuration, MaxDuration} {
		require.NoError(t, Options{Duration: d}.Validate())
	}
	for _, d := range []time.Duration{-1, 0, MinDuration - 1, MaxDuration + 1} {
		require.ErrorContains(t, Options{Duration: d}.Validate(), "--duration")
	}
}

// The first failure is the cause; being ended is no failure.
func TestCrewEndsWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &crew{fail: cancel}
	first := errors.New("first")
	c.join(func() error { return context.Canceled })
	c.wait()
	require.NoError(t, ctx.Err())
	c.join(func() error { return first })
	c.wait()
	c.join(func() error { return errors.New("second") })
	c.wait()
	require.Equal(t, first, context.Cause(ctx))
}

// The configuration is one that an operator could have written.
func TestConfigurationIsValid(t *testing.T) {
	t.Parallel()
	s, err := startStack(t.Context(), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.stop()) }()
	path, err := s.writeConfig()
	require.NoError(t, err)
	require.Equal(t, s.root, filepath.Dir(path))
	cfg, err := config.Load(path)
	require.NoError(t, err)
	require.Equal(t, relaySlot, cfg.Postgres.Slot)
}
