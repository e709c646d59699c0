package router

import (
	"fmt"
	"regexp"

	"github.com/postrider/postrider/event"
)

// problems collects what is wrong with a configuration.
type problems []error

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, &ConfigError{Path: path, Problem: fmt.Sprintf(format, args...)})
}

// compileRoutes compiles a source's routes; at is the source's path, "" for none.
func compileRoutes(s *Source, at string) (*routeTable, problems) {
	var found problems
	checkEnum(&found, join(at, "on_refusal"), s.OnRefusal, OnRefusalParkAggregate, OnRefusalParkEvent, OnRefusalHalt)
	t := &routeTable{rawSlot: -1, policy: s.OnRefusal.policy(event.ParkAggregate), cache: map[string]outcome{}}
	t.deadLetter = deadLetter(s.DeadLetterTopic, "", join(at, deadLetterOption), &found)
	routes := s.Routes
	if len(routes) == 0 {
		routes = []Route{{Topic: DefaultTopic}}
		if s.Mapping.AggregateType == "" {
			found.add(join(at, "routes"), "empty, and the default topic %s needs mapping.aggregate_type", DefaultTopic)
			return t, found
		}
	}
	always := -1
	for i := range routes {
		path := join(at, fmt.Sprintf("routes[%d]", i))
		if always >= 0 {
			found.add(path, "is never reached, routes[%d] applies to every row", always)
		} else if len(routes[i].Match) == 0 && routes[i].Regex == "" {
			always = i
		}
		compiled, wrong := t.compileRoute(&s.Mapping, &routes[i], path)
		t.routes = append(t.routes, compiled)
		found = append(found, wrong...)
	}
	if s.Mapping.OnNoMatch == OnNoMatchRaw {
		found = append(found, t.compileRaw(s, at)...)
	}
	return t, found
}

// policy is the option's value, unless it is empty.
func (o OnRefusal) policy(unset event.Policy) event.Policy {
	switch o {
	case OnRefusalHalt:
		return event.Halt
	case OnRefusalParkAggregate:
		return event.ParkAggregate
	case OnRefusalParkEvent:
		return event.ParkEvent
	}
	return unset
}

// compileRaw finds the field whose own value becomes the topic: that of the first
// route with a regex, else the aggregate type.
func (t *routeTable) compileRaw(s *Source, at string) (found problems) {
	field := "aggregate_type"
	for i := range s.Routes {
		if s.Routes[i].Regex != "" && s.Routes[i].By != "" {
			field = s.Routes[i].By
			break
		}
	}
	slot, err := t.slotFor(&s.Mapping, field)
	if err != nil {
		found.add(join(at, "mapping.on_no_match"), "raw %s", err)
		return found
	}
	t.rawSlot = slot
	return nil
}

func (t *routeTable) compileRoute(m *Mapping, cfg *Route, path string) (r route, found problems) {
	checkEnum(&found, path+".on_refusal", cfg.OnRefusal, OnRefusalParkAggregate, OnRefusalParkEvent, OnRefusalHalt)
	r.policy = cfg.OnRefusal.policy(t.policy)
	r.deadLetter = deadLetter(cfg.DeadLetterTopic, t.deadLetter, path+"."+deadLetterOption, &found)
	for i := range cfg.Match {
		c, wrong := t.compileMatch(m, &cfg.Match[i], fmt.Sprintf("%s.match[%d]", path, i))
		r.conditions = append(r.conditions, c)
		found = append(found, wrong...)
	}
	switch {
	case cfg.Regex != "" && cfg.Topic != "":
		found.add(path, "has both topic and regex")
	case cfg.Regex != "":
		found = append(found, t.compileRegexRoute(m, cfg, path, &r)...)
	default:
		found = append(found, t.compileTemplateRoute(m, cfg, path, &r)...)
	}
	return r, found
}

func (t *routeTable) compileTemplateRoute(m *Mapping, cfg *Route, path string, r *route) (found problems) {
	if cfg.By != "" {
		found.add(path+".by", "is set without regex")
	}
	if cfg.Replacement != "" {
		found.add(path+".replacement", "is set without regex")
	}
	if cfg.Topic == "" {
		found.add(path+".topic", "empty")
		return found
	}
	var err error
	r.template, err = parseTemplate(cfg.Topic, func(field string) (int, error) { return t.slotFor(m, field) })
	if err != nil {
		found.add(path+".topic", "%s", err)
	}
	return found
}

func (t *routeTable) compileRegexRoute(m *Mapping, cfg *Route, path string, r *route) (found problems) {
	by := cfg.By
	if by == "" {
		by = "aggregate_type"
	}
	var err error
	if r.by, err = t.slotFor(m, by); err != nil {
		found.add(path+".by", "%s", err)
	}
	if r.pattern, err = compileJava(cfg.Regex); err != nil {
		found.add(path+".regex", "%s", err)
		return found
	}
	if cfg.Replacement == "" {
		found.add(path+".replacement", "empty")
		return found
	}
	if r.replacement, err = parseReplacement(cfg.Replacement, r.pattern.find); err != nil {
		found.add(path+".replacement", "%s", err)
	}
	for _, part := range r.replacement {
		if problem := topicCharProblem(part.text); problem != "" {
			found.add(path+".replacement", "cannot give a topic: %s", problem)
			break
		}
	}
	return found
}

func (t *routeTable) compileMatch(m *Mapping, cfg *Match, path string) (c condition, found problems) {
	var err error
	if c.slot, err = t.slotFor(m, cfg.Field); err != nil {
		found.add(path+".field", "%s", err)
	}
	kinds := 0
	if cfg.Exact != nil {
		kinds++
		c.exact = cfg.Exact
	}
	if cfg.Glob != "" {
		kinds++
		c.glob = cfg.Glob
	}
	if cfg.Regex != "" {
		kinds++
		if c.regex, err = regexp.Compile(cfg.Regex); err != nil {
			found.add(path+".regex", "%s", err)
		}
	}
	if kinds != 1 {
		found.add(path, "wants exactly one of exact, glob and regex")
	}
	return c, found
}

// join puts a path together; at may be empty.
func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}
