package config

import (
	"time"

	"github.com/postrider/postrider/router"
)

const (
	// Each purge looks through the whole table.
	minEvery, maxEvery = time.Minute, 30 * 24 * time.Hour
	maxRetention       = 20 * 365 * 24 * time.Hour
)

// PurgeRule is how one table is purged.
type PurgeRule struct {
	// Every 0: a relay does not.
	Every time.Duration
	// Retention is nil where none is configured.
	Retention *time.Duration
	// Age is the column that tells how old a row is; "" is the mapped timestamp.
	Age router.Timestamp
}

// PurgeRules are by source: its own keys, or else those of purge.
func (c *Config) PurgeRules() []PurgeRule {
	rules := make([]PurgeRule, len(c.Sources))
	for i := range c.Sources {
		every, retention := c.Purge.Every, c.Purge.Retention
		if own := c.Sources[i].Purge; own != nil {
			if own.Every != nil {
				every = *own.Every
			}
			if own.Retention != nil {
				retention = own.Retention
			}
			rules[i].Age = router.Timestamp{Column: own.AgeColumn.Column, Unit: router.Unit(own.AgeColumn.Unit)}
		}
		rules[i].Every, rules[i].Retention = time.Duration(every), (*time.Duration)(retention)
	}
	return rules
}

func (c *Config) purgeBounds() (rows []bound) {
	retention := func(path string, d *Duration) {
		if d != nil {
			rows = append(rows, span(path, *d, 0, maxRetention))
		}
	}
	retention("purge.retention", c.Purge.Retention)
	for i := range c.Sources {
		own, path := c.Sources[i].Purge, join(index("sources", i), "purge")
		if own == nil {
			continue
		}
		retention(join(path, "retention"), own.Retention)
		if own.Every != nil {
			rows = append(rows, orZero(span(join(path, "every"), *own.Every, minEvery, maxEvery)))
		}
	}
	return rows
}

func (c *Config) validatePurge(r *report) {
	for i, rule := range c.PurgeRules() {
		path := join(index("sources", i), "purge")
		if rule.Every > 0 && rule.Retention == nil {
			where := "purge.retention"
			if own := c.Sources[i].Purge; own != nil && own.Every != nil {
				where = join(path, "retention")
			}
			r.follow(where, "is missing: rows are purged every %s, so it must be said how long they stay", Duration(rule.Every))
		}
		switch rule.Age.Unit {
		case "", router.UnitSeconds, router.UnitMillis, router.UnitMicros, router.UnitNanos:
		default:
			r.follow(join(path, "age_column.unit"), "wants %s, %s, %s or %s", router.UnitSeconds, router.UnitMillis, router.UnitMicros, router.UnitNanos)
		}
		if rule.Age.Column == "" && rule.Age.Unit != "" {
			r.follow(join(path, "age_column.column"), "is missing")
		}
	}
}
