/* A library by name only, to link with: what it stands for is found when a program starts. */
typedef int nothing;
