//go:build race

package ssh

// raced says that the race detector looks on. The library has a race, over a key exchange right after the first, which ends in the
// panic of [TestPanicInAHandshake]: then peers take the next step before they begin another.
const raced = true
