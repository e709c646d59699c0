package router

import (
	"fmt"
	"slices"
)

const deadLetterOption = "dead_letter_topic"

// deadLetter is the option's value, unless it is empty. It is a name and no template.
func deadLetter(topic, unset, path string, found *problems) string {
	switch topic {
	case "":
		return unset
	case Disabled:
		return ""
	}
	if problem := topicProblem(topic); problem != "" {
		found.add(path, "%s", problem)
	}
	return topic
}

// DeadLetterTopics lists the topics that get copies of parked events.
func (r *Router) DeadLetterTopics() []string {
	var topics []string
	for _, src := range r.sources {
		topics = append(topics, src.routes.deadLetter)
		for i := range src.routes.routes {
			topics = append(topics, src.routes.routes[i].deadLetter)
		}
	}
	slices.Sort(topics)
	return slices.DeleteFunc(slices.Compact(topics), func(name string) bool { return name == "" })
}

// checkDeadLetters refuses a topic that has events of its own: a copy among them would
// be taken for one. Topics that only a row tells cannot be checked.
func checkDeadLetters(sources []Source, topics []string) (found problems) {
	check := func(topic, path string) {
		if _, both := slices.BinarySearch(topics, topic); both {
			found.add(path, "is %s, which is the topic of a route", topic)
		}
	}
	for i := range sources {
		path := fmt.Sprintf("sources[%d]", i)
		check(sources[i].DeadLetterTopic, join(path, deadLetterOption))
		for n := range sources[i].Routes {
			check(sources[i].Routes[n].DeadLetterTopic, fmt.Sprintf("%s.routes[%d].%s", path, n, deadLetterOption))
		}
	}
	return found
}
