// Package worker is the process that works on the files of one box. It is the gateway's own program, started anew: before
// it reads a request, it makes the box's root its own root (chroot), becomes the box's user and checks that no capability
// is left. From then on it can do to files what a command of the box's user could do, and nothing else, whatever links,
// mounts and races the box arranges. It is in the box's control groups, so that memory, disk and processor time count as
// the box's, but not in its PID namespace: the box cannot see, trace or signal it. It holds no secret and no descriptor
// but its streams.
//
// A program that imports this package is a worker when it is started under the name [Name]. Requests come on standard
// input, answers go to standard output; see [Request].
package worker
