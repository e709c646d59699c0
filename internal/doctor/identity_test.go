package doctor

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
)

const (
	plainTable = `CREATE TABLE t (id int PRIMARY KEY, kind text NOT NULL, payload text); CREATE UNIQUE INDEX by_kind ON t (kind); INSERT INTO t VALUES (1, 'a', 'x');`
	partsTable = `CREATE TABLE t (id int, kind text NOT NULL, payload text, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);
		CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a'); INSERT INTO t VALUES (1, 'a', 'x');`
)

// identityLayouts are publications whose published updates and deletes PostgreSQL takes or
// refuses.
var identityLayouts = map[string]string{
	"primary key":                          plainTable + `CREATE PUBLICATION p FOR TABLE t`,
	"inserts only, no identity":            plainTable + `ALTER TABLE t REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert')`,
	"no identity":                          plainTable + `ALTER TABLE t REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE t`,
	"no identity, updates only":            plainTable + `ALTER TABLE t REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE t WITH (publish = 'update')`,
	"no identity, deletes only":            plainTable + `ALTER TABLE t REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE t WITH (publish = 'delete')`,
	"no primary key":                       plainTable + `ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE PUBLICATION p FOR TABLE t`,
	"full":                                 plainTable + `ALTER TABLE t REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR TABLE t`,
	"by index":                             plainTable + `ALTER TABLE t REPLICA IDENTITY USING INDEX by_kind; CREATE PUBLICATION p FOR TABLE t`,
	"index dropped":                        plainTable + `ALTER TABLE t REPLICA IDENTITY USING INDEX by_kind; DROP INDEX by_kind; CREATE PUBLICATION p FOR TABLE t`,
	"all tables, no identity":              plainTable + `ALTER TABLE t REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR ALL TABLES`,
	"filter on the key":                    plainTable + `CREATE PUBLICATION p FOR TABLE t WHERE (id > 0)`,
	"filter on another column":             plainTable + `CREATE PUBLICATION p FOR TABLE t WHERE (kind = 'a')`,
	"filter on another column, full":       plainTable + `ALTER TABLE t REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR TABLE t WHERE (kind = 'a')`,
	"filter on the index's column":         plainTable + `ALTER TABLE t REPLICA IDENTITY USING INDEX by_kind; CREATE PUBLICATION p FOR TABLE t WHERE (kind = 'a')`,
	"filter, inserts only":                 plainTable + `CREATE PUBLICATION p FOR TABLE t WHERE (kind = 'a') WITH (publish = 'insert')`,
	"columns with the key":                 plainTable + `CREATE PUBLICATION p FOR TABLE t (id, payload)`,
	"columns without the key":              plainTable + `CREATE PUBLICATION p FOR TABLE t (kind)`,
	"columns, full":                        plainTable + `ALTER TABLE t REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR TABLE t (id, kind)`,
	"columns and a filter on another":      plainTable + `CREATE PUBLICATION p FOR TABLE t (id, payload) WHERE (kind = 'a')`,
	"schema, no identity":                  plainTable + `ALTER TABLE t REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLES IN SCHEMA public`,
	"partitions":                           partsTable + `CREATE PUBLICATION p FOR TABLE t`,
	"partition without identity":           partsTable + `ALTER TABLE t_a REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE t`,
	"partitions by the root, filter":       partsTable + `CREATE PUBLICATION p FOR TABLE t WHERE (payload = 'x') WITH (publish_via_partition_root = true)`,
	"partitions by the root, key filter":   partsTable + `CREATE PUBLICATION p FOR TABLE t WHERE (id > 0) WITH (publish_via_partition_root = true)`,
	"partition alone, filter":              partsTable + `CREATE PUBLICATION p FOR TABLE t_a WHERE (payload = 'x')`,
	"partition alone, without an identity": partsTable + `ALTER TABLE t_a REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE t_a`,
	"schema, partition without identity":   partsTable + `ALTER TABLE t_a REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLES IN SCHEMA public`,
}

// rule 21: what the catalog says about published updates and deletes is what PostgreSQL
// does with such statements.
func TestReplicaIdentityIsAsPostgreSQLHasIt(t *testing.T) {
	t.Parallel()
	for name, ddl := range identityLayouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Postgres(t)
			if db.VersionNum(t) < 150000 && (strings.Contains(ddl, "WHERE") || strings.Contains(ddl, "SCHEMA") || strings.Contains(ddl, "t (")) {
				t.Skip("needs PostgreSQL 15")
			}
			db.Exec(t, ddl)
			e := newExam(Config{Replication: replication.Config{ConnString: db.DSN}, Kafka: publisher.Config{Brokers: []string{"127.0.0.1:1"}}}.withDefaults())
			defer e.close()
			all, err := e.identities(t.Context(), replication.Table{Schema: "public", Name: "t"})
			if err != nil {
				t.Fatal(err)
			}
			says := map[string]bool{}
			for _, i := range all {
				if i.wrong() != "" {
					says["UPDATE"] = says["UPDATE"] || i.update
					says["DELETE"] = says["DELETE"] || i.remove
				}
			}
			for statement, sql := range map[string]string{"UPDATE": "UPDATE t SET payload = 'y'", "DELETE": "DELETE FROM t"} {
				_, err := db.Conn(t).Exec(t.Context(), "BEGIN; "+sql+"; ROLLBACK", pgx.QueryExecModeSimpleProtocol)
				if fails := err != nil; fails != says[statement] {
					t.Errorf("%s: the server says %v; found %+v", statement, err, all)
				}
			}
		})
	}
}
