// The only file that includes Pistache. What is used of it: the listener with its reactors (transport.cc), the request
// parser (request_line.cc) and the route tree (route_tree.cc).
//
// What is not used: its HTTP handler, response writer, body parser, write queue and timers. They keep a body in memory
// several times, parse the rest of a refused body as new requests, drop pipelined requests and half-closed clients,
// count time from the connection's start, and address answers by descriptor, which under churn reach somebody else.
#pragma once

#include <pistache/http.h>
#include <pistache/listener.h>
#include <pistache/peer.h>
#include <pistache/router.h>
#include <pistache/transport.h>
