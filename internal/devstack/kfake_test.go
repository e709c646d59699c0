package devstack_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postrider/postrider/internal/devstack"
)

func TestKfakeKeepsRecordsOverRestart(t *testing.T) {
	t.Parallel()
	k, err := devstack.StartKfake(devstack.KfakeOptions{Sync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Stop()) })
	c := client(t, k)
	createTopic(t, c, "kept", 1)
	produce(t, c, "kept", "here")
	require.NoError(t, k.Restart())
	require.Equal(t, "here", first(t, k, "kept"))
}
