package checkpoint_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/testkit"
)

// rule 4: what the server sifts is what Covered would, also where the 32 bits of a
// transaction id have wrapped.
func TestUncoveredSQL(t *testing.T) {
	t.Parallel()
	conn := testkit.Postgres(t).Conn(t)
	const wrap = uint64(1) << 32
	snapshots := []checkpoint.Snapshot{
		{Xmin: 3, Xmax: 3},
		{Xmin: 100, Xmax: 200},
		{Xmin: wrap - 5, Xmax: wrap + 5},
		{Xmin: wrap + 7, Xmax: wrap + 7},
		{Xmin: 5*wrap - 1, Xmax: 5 * wrap},
		{Xmin: wrap / 2, Xmax: wrap/2 + 1},
		{Xmin: wrap/2 + wrap, Xmax: wrap + wrap/2 + 90},
	}
	for _, s := range snapshots {
		xids := []uint32{0, 1, 2, 3, 4, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1, 1<<32 - 2}
		for _, near := range []uint64{s.Xmin, s.Xmax, s.Xmax + 1<<31} {
			for d := range uint64(5) {
				xids = append(xids, uint32(near-2+d))
			}
		}
		for range 200 {
			xids = append(xids, rand.Uint32())
		}
		var values []string
		for _, x := range xids {
			values = append(values, fmt.Sprintf("('%d'::xid)", x))
		}
		rows, err := conn.Query(t.Context(), "SELECT x::text FROM (VALUES "+strings.Join(values, ",")+") v(x) WHERE "+s.UncoveredSQL("v.x"))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for rows.Next() {
			var x string
			if err := rows.Scan(&x); err != nil {
				t.Fatal(err)
			}
			got[x] = true
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		for _, x := range xids {
			if got[fmt.Sprint(x)] == checkpoint.Covered(s, x) {
				t.Errorf("%+v, %d: Covered says %t, and so does the negation on the server", s, x, checkpoint.Covered(s, x))
			}
		}
	}
}
