// Package store keeps the gateway's state on disk: boxes and their addresses, policies, header rules, certificate
// authorities, public URLs and API keys, in one bbolt file in the state directory.
//
// Every method that changes state is one transaction, which is durable when the method returns: after a crash the state
// is either entirely the old or entirely the new one. Policies and header rules are changed in two steps, as by
// [DB.StagePolicy] and [DB.CommitPolicy]; the next start of the gateway drops staged documents that were never
// committed ([DB.DropStaged]).
//
// Secrets are sealed with a data key that is itself encrypted by age, to a key file or a passphrase: see [Options].
// Methods take and return them as [name.Secret]. The file must still be kept private: names, labels, policies and
// addresses are not encrypted.
//
// The methods take and return records, never buckets or transactions, so that a store for a fleet can offer the same
// methods. Consumers declare the methods they need as an interface of their own.
package store
