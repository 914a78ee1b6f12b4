// Package store keeps the gateway's state on disk: boxes and their addresses, policies, header rules, certificate
// authorities, public URLs and API keys, in one bbolt file in the state directory.
//
// [Open] opens the file as a [DB], which checks, copies and re-encrypts it as a whole. The records are in its
// parts, one for each subject: [Boxes], [Usages], [Rules], [Authorities], [URLs], [Schedules], [Snapshots], [Keys],
// [Environment] and [Installation]. A consumer gets only the parts that it needs.
//
// Every method that changes state is one transaction over all parts, which is durable when the method returns: after a
// crash the state is either entirely the old or entirely the new one. Policies and header rules are changed in two
// steps, as by [Rules.StagePolicy] and [Rules.CommitPolicy]; the next start of the gateway drops staged documents that
// were never committed ([Rules.DropStaged]).
//
// Secrets are sealed with a data key that is itself encrypted by age, to a key file or a passphrase: see [Options].
// Methods take and return them as [name.Secret]. The file must still be kept private: names, labels, policies and
// addresses are not encrypted.
//
// The methods take and return records, never buckets or transactions, so that a store for a fleet can offer the same
// methods.
package store
