// Package reissue publishes events that do not come from the stream: what backfill,
// recover and replay read from the table, in the order that their task lists.
//
// A Run takes numbered events from a Source, marks each with a header, and publishes
// them through a publisher of its own. It keeps the acknowledged prefix: the number up
// to which every event is acknowledged, or refused and noted so. The prefix is saved
// once a second, and sooner where half of the window is used up. An event that is
// refused is noted, and later ones of its topic and key are withheld, so that nothing
// overtakes it.
//
// # What a crash repeats
//
// Events on their way or acknowledged, and not yet covered by the saved prefix, are
// never more than Config.Window. A run that is killed and resumed repeats at most so many.
//
// # The task
//
// Desk keeps postrider.task and postrider.task_item: who asked for what and why, who
// approved it, how far it is. Only one process at a time works on a task.
package reissue
