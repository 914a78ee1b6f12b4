// Package store keeps the gateway's state on disk: boxes and their addresses, policies, header rules, certificate
// authorities, public URLs and API keys, in one bbolt file in the state directory.
//
// Every method that changes something is one transaction, on disk when it returns: after a crash the state is the old
// or the new one, whole. Policies and header rules are changed in two steps, as by [DB.StagePolicy] and
// [DB.CommitPolicy]; what was staged and never committed is dropped at the next start of the gateway ([DB.DropStaged]).
//
// Secrets are sealed with a data key that is itself encrypted by age, to a key file or a passphrase: see [Options].
// They go in and come out as [name.Secret]. The file must still be kept private: names, labels, policies and
// addresses are stored in the clear.
//
// The methods take and return records, never buckets or transactions, so that a store for a fleet can offer the same
// set. Consumers declare the methods they need as an interface of their own.
package store
