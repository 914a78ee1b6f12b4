// Package worker is the process that works on the files of one box. It is the gateway's own program, executed again: before
// it reads a request, it makes the box's root its own root (chroot), becomes the box's user and checks that it has no
// capability left. From then on it has exactly the file access of a command of the box's user, whatever links, mounts and
// races the box arranges. It is in the box's control groups, so that memory, disk and CPU usage count for the box, but not
// in its PID namespace: the box cannot see, trace or signal it. It has no secrets, and no descriptors except its streams.
//
// For another user of the box, root among them, the process is started in the box's other namespaces (package enter), with the credentials of a
// command of that user: the capabilities of the box's root count in its user namespace only. It serves the same requests.
//
// A program that imports this package becomes a worker when it is started under the name [Name]. Requests come on standard
// input, answers go to standard output; see [Request].
package worker
