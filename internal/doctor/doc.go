// Package doctor asks each precondition of a run as a question of its own, and gives for
// each a finding and, where something is wrong, the fix. It reads only. A dependency that
// does not serve hides no other: what could not be asked is named as not checked.
//
// A check is one function; checks.go lists them in the order in which they are told.
// Facts that several checks need are read once and kept in exam.
package doctor
