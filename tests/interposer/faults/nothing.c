/* A stub library to link with; the real one is found at run time. */
typedef int nothing;
