// Package change makes changes of the permissions of boxes: [Apply] stages a change on disk, applies and commits it, or rolls it
// back. It also has helpers for other operations that must not stop half-way: contexts that outlive the caller ([Detach],
// [DetachRollback]), panics as errors ([Contain]) and rollbacks ([Undo]).
package change
