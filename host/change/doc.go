// Package change makes the changes of what boxes may do: [Apply] stages a change on disk, puts it in force and commits it, or rolls it
// back. It also has what other steps need that must not stop half-way: contexts that outlive the caller ([Begun], [Restoring]), panics
// as errors ([Contain]) and rollbacks ([Undo]).
package change
