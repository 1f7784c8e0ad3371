/* The functions that a program finds by cuGetProcAddress. */
struct carrier_name {
  const char *base;
  int version;
  int (*function)(void);
};
extern const struct carrier_name carrier_names[];
