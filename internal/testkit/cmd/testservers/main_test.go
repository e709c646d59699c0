package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postrider/postrider/internal/testkit/servers"
)

// The environment is the process's, so these tests are not parallel.

func TestRunGivesTheCommandItsServersAndPassesItsExitCodeThrough(t *testing.T) {
	t.Setenv(servers.ChoiceEnv, string(servers.Kfake))
	t.Setenv(servers.RequireRealEnv, "")
	seen := filepath.Join(t.TempDir(), "env")
	code, err := run([]string{"run", "sh", "-c", "env >" + seen + "; exit 7"})
	require.NoError(t, err)
	require.Equal(t, 7, code)
	env, err := os.ReadFile(seen)
	require.NoError(t, err)
	require.Contains(t, string(env), servers.PostgresEnv+"=postgres://postgres@127.0.0.1:")
	require.Contains(t, string(env), servers.KafkaEnv+"=127.0.0.1:")
	require.Contains(t, string(env), servers.KafkaKindEnv+"=kfake")
}

func TestRunFailsWhereRealServersAreRequiredAndNotToBeHad(t *testing.T) {
	t.Setenv(servers.ChoiceEnv, string(servers.Kfake))
	t.Setenv(servers.RequireRealEnv, "1")
	ran := filepath.Join(t.TempDir(), "ran")
	code, err := run([]string{"run", "touch", ran})
	require.ErrorContains(t, err, "NOT a real Kafka")
	require.Equal(t, 1, code)
	require.NoFileExists(t, ran)
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{nil, {"run"}, {"walk", "x"}, {"serve", "mysql"}} {
		code, err := run(args)
		require.Error(t, err)
		require.Equal(t, 2, code)
	}
	t.Setenv(servers.ChoiceEnv, "podman")
	code, err := run([]string{"run", "true"})
	require.ErrorContains(t, err, "auto, docker, local or kfake")
	require.Equal(t, 2, code)
}

func TestACommandThatDoesNotExistIsAnError(t *testing.T) {
	t.Setenv(servers.ChoiceEnv, string(servers.Kfake))
	t.Setenv(servers.RequireRealEnv, "")
	code, err := run([]string{"run", "no-such-command-here"})
	require.Error(t, err)
	require.Equal(t, 1, code)
}
